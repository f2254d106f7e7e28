# PyTorch on spot workers: `python train.py` on every one of them, with the variables that torchrun would set, and no torchrun.
# It rents nothing: the provider "local" plays the cloud on this computer. Name your cloud's instead, and a GPU in workers.
#
#   launcher up job.hcl
#   launcher preempt RUN NODE --notice 5s     # in another terminal, any worker

variable "python" {
  default = "python3" # one that has PyTorch on the workers; ".venv/bin/python": install it there
}

variable "steps" {
  default = 600 # of 50 ms: half a minute, long enough to take a worker away
}

job "torch-ddp" {
  provider "local" {
    notice = "10s"
  }

  workers {
    min = 2 # train with what is there, from two
    max = 4
  }

  workdir {
    source  = "."
    exclude = ["ckpt", "out", "results"]
  }

  setup = file("setup.sh")
  env   = { PYTHON = var.python }

  run "ranks" {
    command        = "${var.python} train.py --steps ${var.steps}"
    procs_per_node = 2 # on GPUs leave it out: one for each
  }

  elastic {
    start_wait = "60s"
    grow_every = "10s" # back to four soon after a loss
    lost_after = "5s"
  }

  preemption {
    signal = "SIGUSR1" # the ranks checkpoint at the end of their step and leave
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
