# A job for launcher: `launcher validate job.hcl`, `launcher plan job.hcl`, `launcher up job.hcl`.
# What stands in brackets is what leaving the line out means.

job "NAME" {
  # "local" rents nothing: its machines are processes of this computer.
  # For the same job on a cloud, replace this block; the rest stays.
  provider "local" {
    notice = "10s" # how long a preempted machine is told in advance         ["30s"]
  }

  workers {
    # count = 2         # a fixed world, held until a lost worker is replaced; or:
    min    = 1          # an elastic one: train with what is there, from min
    max    = 2          #   up to max
    market = "spot"     # "on_demand", "spot_or_on_demand"                    ["spot"]
  }

  # This folder travels to every worker, without what .gitignore names.
  workdir {
    source  = "."
    exclude = ["results"]
  }

  # Runs on every worker before its first rank: bash -euo pipefail, in the workdir.
  # setup = file("setup.sh")

  # env     = { EPOCHS = "3" }
  # secrets = ["WANDB_API_KEY"]    # names of your environment's variables; never in journal or logs

  # One process per worker (per GPU where there are some), with torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR …
  run "ranks" {
    command = "echo rank $RANK of $WORLD_SIZE, generation $LAUNCHER_GENERATION; mkdir -p out; date > out/done-$RANK"
    # procs_per_node = 2
  }

  elastic {
    start_wait   = "20s" # the first generation waits so long for workers above min    ["60s"]
    max_restarts = 3     # of the job's own failures; preemptions do not count         [3]
    # grow_every = "10m" # growth waits for a checkpoint, and so long after the last   ["10m"]
    # below_min  = "30m" # fewer than min for so long: give up                         ["30m"]
  }

  # What the ranks hear before a generation is ended on purpose, and how long they have.
  # preemption {
  #   signal = "SIGUSR1"
  #   grace  = "20s"
  # }

  # A file renamed into place here is copied off the worker, and onto every worker before a generation starts.
  # checkpoint {
  #   path = "ckpt"
  # }

  # What comes back, of rank 0's node: at a notice, every minute, and at the end.
  outputs {
    from = "out"
    to   = "./results"
  }

  limits {
    budget_usd   = 1    # the run is ended before it costs more                        [none]
    max_duration = "1h" #                                                              ["24h"]
  }
}
