"""The hooks on torch: what is put on, what a call then does, and how all of it comes off."""
