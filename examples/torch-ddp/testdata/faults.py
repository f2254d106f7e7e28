"""Runs train.py with something wrong about it. Used by the integration test: faults.py FAULT [train.py's flags]."""
import os
import runpy
import signal
import sys
import time

fault = sys.argv.pop(1)
rank = int(os.environ["RANK"])

if fault == "deaf":  # hears neither the job's signal nor SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    real = signal.signal
    signal.signal = lambda s, h: real(s, signal.SIG_IGN if s == signal.SIGUSR1 else h)
elif fault == "handlerless":  # SIGUSR1 ends it
    real = signal.signal
    signal.signal = lambda s, h: real(s, signal.SIG_DFL if s == signal.SIGUSR1 else h)
elif fault == "slow":  # imports for seconds longer on some ranks than on others
    time.sleep(3 * (rank % 2))
elif fault == "crash":  # rank 1 fails once it has joined, in every generation
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if rank == 1:
        sys.stderr.write("loss is not a number\n")
        sys.stderr.flush()
        os._exit(41)
    time.sleep(30)
elif fault == "early":  # rank 1 is done before the others
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    sys.stdout.write(f"rank {rank} done\n")
    sys.stdout.flush()
    if rank != 1:
        time.sleep(6)
    os._exit(0)

runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train.py"), run_name="__main__")
