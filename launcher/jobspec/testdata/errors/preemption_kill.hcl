job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  preemption {
    signal = "SIGKILL" # error: Wrong value for "signal"
  }
}
