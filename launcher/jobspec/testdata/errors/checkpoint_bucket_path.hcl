job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  checkpoint {
    path = "s3://bucket/ckpt" # error: Wrong value for "path"
  }
}
