job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  checkpoint {
    path = "~/ckpt" # error: Wrong value for "path"
  }
}
