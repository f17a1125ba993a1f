"""Several ranks of one launch, joined: who makes whom wait, and why."""
