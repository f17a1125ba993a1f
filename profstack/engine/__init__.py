"""The engine of a measurement: it finds steps, changes slices, and lets layers observe them."""
