job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  elastic {
    start_wait = 60 # error: Wrong value for "start_wait"
  }
}
