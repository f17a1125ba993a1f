"""What NVIDIA Nsight Systems recorded of a run: found, run, exported, read and joined to steps.

Parent side: nothing here imports torch. A capture comes in as the SQLite file that nsys exports;
what goes out are the rows of the recorded tables `nsys_*`.
"""
