# The demo's job: examples/elastic-sgd, run by a copy of the launcher's own executable.

variable "root" {} # the folder of the local "cloud"

job "demo" {
  provider "local" {
    root   = var.root
    notice = "10s" # what a preempted machine is told in advance
  }

  workers {
    min = 2 # train with what is there, from two
    max = 4
  }

  workdir {
    source = "."
  }

  run "ranks" {
    command = "./elastic-sgd -steps 700 -step-time 40ms -checkpoint-every 25 -log-every 10"
  }

  elastic {
    start_wait = "30s" # for the workers above min
    grow_every = "1s"
    lost_after = "5s"
  }

  preemption {
    signal = "SIGUSR1" # the ranks checkpoint at the end of their step and leave
    grace  = "3s"
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
    max_duration  = "10m"
    start_timeout = "2m"
    node_lease    = "1m" # were the demo killed, all would end itself soon
    hold_results  = "1m"
  }
}
