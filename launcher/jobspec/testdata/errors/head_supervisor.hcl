job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  head {
    supervisor = "laptop" # error: Wrong value for "supervisor"
  }
}
