# Shows a training job that loses spot workers and does not notice in its result:
# plain processes with torchrun's environment (run "ranks"), a checkpoint that the
# launcher carries to every replacement, a signal to save before a preemption.
# It rents nothing: the provider "local" plays the cloud on this computer.
#
#   launcher up job.hcl
#   launcher preempt RUN NODE --notice 5s     # in another terminal, any worker

job "elastic-sgd" {
  provider "local" {
    notice = "10s" # what a preempted machine is told in advance
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

  run "ranks" {
    # 600 steps of 50 ms: half a minute, long enough to take a worker away.
    command = "./elastic-sgd -steps 600 -step-time 50ms -checkpoint-every 40"
  }

  elastic {
    start_wait = "10s" # for the workers above min
    grow_every = "5s"  # back to four soon after a loss
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
    max_duration  = "15m"
    start_timeout = "5m"
  }
}
