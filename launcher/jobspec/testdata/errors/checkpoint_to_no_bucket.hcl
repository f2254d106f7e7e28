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
    to   = "s3://" # error: Wrong value for "to"
  }
}
