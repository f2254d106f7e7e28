"""Trains a digit classifier with DistributedDataParallel, on however many ranks there are, and survives losing them.

A plain PyTorch script: it runs under `torchrun`, under `python train.py` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
set, and alone. Written for PyTorch 1.13 and all later ones. All it knows of launcher is one environment variable,
LAUNCHER_CHECKPOINT: the folder that holds the newest checkpoint.

Exit codes: 0 trained to the end, 1 a rank was lost or something broke, 75 told to stop by SIGUSR1 and saved.
"""
import time

STARTED = time.time()

import os
import signal

STOPPED = 75  # EX_TEMPFAIL: call again, and it goes on
training = False
stopping = False


def stop(signum, frame):
    """Called at SIGUSR1: before the first step there is nothing to save."""
    global stopping
    stopping = True
    if not training:
        os._exit(STOPPED)


signal.signal(signal.SIGUSR1, stop)  # before the slow imports: the signal ends a process that has no handler for it

import argparse
import csv
import glob
import gzip
import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def load_digits(path):
    """Returns the training and test halves of 1,797 images of 8x8: pixels in 0..1 and digits."""
    with gzip.open(path, "rt", newline="") as f:
        rows = torch.tensor([[float(v) for v in row] for row in csv.reader(f)])
    x, y = rows[:, :64] / 16, rows[:, 64].long()
    test = torch.arange(len(x)) % 5 == 4
    return (x[~test], y[~test]), (x[test], y[test])


def newest_checkpoint(folder):
    """Returns the newest checkpoint that can be read, or None: one bad file does not cost the run."""
    for path in sorted(glob.glob(os.path.join(folder, "step-*.pt")), reverse=True):
        try:
            return torch.load(path, map_location="cpu")
        except Exception as err:
            print(f"skip {path}: {err}", file=sys.stderr, flush=True)
    return None


def save_checkpoint(folder, step, model, optimizer, keep=3):
    """Writes a checkpoint that appears whole or not at all, whatever happens meanwhile."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"step-{step:06d}.pt")
    part = os.path.join(folder, f".step-{step:06d}.part")
    with open(part, "wb") as f:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(part, path)
    for old in sorted(glob.glob(os.path.join(folder, "step-*.pt")))[:-keep]:
        os.remove(old)
    say(f"checkpoint step {step}")


def batch_of(step, size, count):
    """Returns the indices of a step's batch: the same for every history of restarts and every number of ranks."""
    return torch.randint(count, (size,), generator=torch.Generator().manual_seed(step))


def say(text):
    """Prints a line in one piece: several ranks may share a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def train(args, data, model, optimizer):
    """Trains to the end, or until told to stop, and returns the exit code."""
    global training
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = os.environ.get("LAUNCHER_CHECKPOINT", "ckpt")
    (x, y), (test_x, test_y) = data

    # What rank 0 finds holds for all: a node may have a newer checkpoint than another, but there is one state to go on from.
    found = [newest_checkpoint(folder) if rank == 0 else None]
    dist.broadcast_object_list(found, src=0)
    step = 0
    if found[0] is not None:
        step = found[0]["step"]
        model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
    resumed = step
    parallel = DistributedDataParallel(model)
    say(
        f"rank {rank} of {world} on node {os.environ.get('GROUP_RANK', '0')}: torch {torch.__version__}, starts at step {step} "
        f"(started {STARTED:.3f}, loaded {args.loaded:.3f}, joined {time.time():.3f})"
    )

    training = True
    while step < args.steps:
        began = time.time()
        mine = batch_of(step, args.batch, len(x))[rank::world]
        # The batch is one and the same for every world size, so the gradient is too: DDP divides by world, hence the factor.
        loss = F.cross_entropy(parallel(x[mine]), y[mine], reduction="sum") * (world / args.batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1

        # Ranks hear of a stop at different moments; all must leave after the same step, or the others wait for ever.
        numbers = torch.tensor([loss.item() / world, float(stopping)])
        dist.all_reduce(numbers)
        mean, told = numbers.tolist()
        if rank == 0 and (step % args.log_every == 0 or step == args.steps):
            say(f"step {step} loss {mean:.4f} world {world}")
        if rank == 0 and (step % args.checkpoint_every == 0 or step == args.steps or told):
            save_checkpoint(folder, step, model, optimizer)
        if told and step < args.steps:
            dist.barrier()  # nobody leaves before it is saved
            return STOPPED
        time.sleep(max(0.0, args.step_time - (time.time() - began)))

    if rank == 0:
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
            loss = F.cross_entropy(model(test_x), test_y).item()
        os.makedirs("out", exist_ok=True)
        with open("out/result.json", "w") as f:
            json.dump({"accuracy": accuracy, "loss": loss, "steps": step, "resumed": resumed, "world": world, "torch": torch.__version__}, f)
        say(f"accuracy {accuracy:.4f} loss {loss:.4f} after {step} steps")
    dist.barrier()
    return 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=600)
    p.add_argument("--batch", type=int, default=128, help="of all ranks together")
    p.add_argument("--checkpoint-every", type=int, default=40)
    p.add_argument("--log-every", type=int, default=20)
    p.add_argument("--step-time", type=float, default=0.05, help="seconds a step takes at least: a small model stands for a big one")
    p.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)  # torch.distributed.launch adds it
    args = p.parse_args()
    torch.set_num_threads(1)
    data = load_digits(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "digits.csv.gz"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    args.loaded = time.time()
    if "RANK" not in os.environ:  # alone
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("gloo")
    code = train(args, data, model, optimizer)
    if code == STOPPED:
        os._exit(code)  # it is saved, and the next generation waits: PyTorch takes a second to put itself away
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
