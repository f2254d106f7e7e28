job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  checkpoint {
    path = "ckpt"
    to   = "haed" # error: Wrong value for "to"
  }
}
