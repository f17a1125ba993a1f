"""A GAN of two Sequential nets with an optimizer each."""

import probe

probe.first_line()

import torch
from torch import nn


def main():
    probe.seed(2)
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
    critic = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(64, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(32, 1), torch.zeros(32, 1)
    steps = 0
    for _ in range(60):
        images = torch.randn(32, 16) + 2
        made = generator(torch.randn(32, 8))
        critic_optimizer.zero_grad()
        critic_loss = criterion(critic(images), real) + criterion(critic(made.detach()), fake)
        critic_loss.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        generator_loss = criterion(critic(made), real)
        generator_loss.backward()
        generator_optimizer.step()
        print(critic_loss.item().hex(), generator_loss.item().hex())
        steps += 1
    probe.last_step(
        generator=generator, critic=critic, first=critic_optimizer, second=generator_optimizer
    )
    print("steps", steps)


if __name__ == "__main__":
    main()
