# The same under torchrun: your own torchrun line, once on every worker, with nothing in it about the other nodes.
# The launcher says them in PET_* variables, anew for each generation.
#
#   launcher up torchrun.hcl

variable "torchrun" {
  default = "torchrun" # on the workers' PATH
}

variable "steps" {
  default = 600
}

job "torch-ddp" {
  provider "local" {
    notice = "10s"
  }

  workers {
    min = 2
    max = 4
  }

  workdir {
    source  = "."
    exclude = ["ckpt", "out", "results"]
  }

  run "torchrun" {
    command        = "${var.torchrun} train.py --steps ${var.steps}"
    procs_per_node = 2
  }

  elastic {
    start_wait = "60s"
    grow_every = "10s"
    lost_after = "5s"
  }

  preemption {
    signal = "SIGUSR1" # goes to the ranks, never to torchrun
    grace  = "5s"
  }

  checkpoint {
    path = "ckpt"
  }

  outputs {
    from = "out"
    to   = "./results"
  }

  limits {
    budget_usd    = 1
    max_duration  = "30m"
    start_timeout = "10m"
  }
}
