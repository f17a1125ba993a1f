"""Never imports torch."""

import probe

probe.first_line()

import random

probe.seed(33)
print(sum(random.random() for _ in range(100_000)).hex())
probe.last_step()
print("steps", 0)
