job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  workdir {
    exclude = "*.ckpt" # error: Wrong type for "exclude"
  }
}
