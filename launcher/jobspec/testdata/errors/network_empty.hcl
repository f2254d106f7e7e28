job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  network {
    ssh_from = [] # error: Wrong value for "ssh_from"
  }
}
