# Distributed PyTorch for launcher: `launcher plan job.hcl`, then `launcher up job.hcl`.
# The script calls torch.distributed.init_process_group() as under torchrun; nothing else is needed of it.
# What stands in brackets is what leaving the line out means.

job "NAME" {
  # "local" rents nothing: the workers are processes of this computer, without GPUs. Try the job there first.
  provider "local" {}

  # On a cloud, instead (needs its plugin, `launcher providers`):
  # provider "aws" {
  #   regions = ["us-east-1", "us-west-2"]
  # }

  workers {
    min = 1                              # train with what is there, from min
    max = 2                              #   up to max
    # gpu      = ["V100:4", "A10G:4"]    # model:count per worker, any of them, ranked by price
    # market   = "spot"                  # "on_demand", "spot_or_on_demand"                     ["spot"]
    # disk_gib = 100                     #                                                      [100]
  }

  workdir {
    source  = "." # this folder travels to every worker, without what .gitignore names
    exclude = ["*.ckpt", "*.pt", "results"]
  }

  # Runs on every worker before its first rank: bash -euo pipefail, in the workdir.
  setup = <<-EOT
    python3 -c 'import torch' 2>/dev/null || pip install --quiet torch
  EOT

  # env     = { OMP_NUM_THREADS = "4" }
  # secrets = ["WANDB_API_KEY"] # names of your environment's variables; never in journal or logs

  # One process per GPU (per worker where there is none), with the variables that torchrun sets: no torchrun needed.
  run "ranks" {
    command = "python3 train.py"
    # procs_per_node = 4
  }

  elastic {
    start_wait   = "60s" # the first generation waits so long for workers above min            ["60s"]
    grow_every   = "10m" # growth waits for a checkpoint, and so long after the last           ["10m"]
    max_restarts = 3     # of the job's own failures; preemptions and lost workers do not count [3]
  }

  # Every rank hears this before its generation is ended, and has so long to save a checkpoint.
  preemption {
    signal = "SIGUSR1"
    grace  = "20s"
  }

  # Write checkpoints into this folder by rename (torch.save to a temporary name, then os.replace). Each is copied off its worker, and lies in
  # the folder $LAUNCHER_CHECKPOINT on every worker before the next generation starts: load the newest from there.
  checkpoint {
    path = "ckpt"
    keep = 2
  }

  outputs {
    from = "out" # of rank 0's worker
    to   = "./results"
  }

  limits {
    budget_usd    = 20    # the run is ended before it costs more                              [none]
    max_duration  = "24h" #                                                                    ["24h"]
    start_timeout = "20m" #                                                                    ["20m"]
  }
}
