job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  preemption {
    signal = "usr1" # error: Wrong value for "signal"
  }
}
