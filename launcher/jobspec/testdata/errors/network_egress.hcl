job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  network {
    egress = "public-ip" # error: Wrong value for "egress"
  }
}
