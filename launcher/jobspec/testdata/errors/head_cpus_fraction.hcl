job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  head {
    cpus = 1.5 # error: Wrong value for "cpus"
  }
}
