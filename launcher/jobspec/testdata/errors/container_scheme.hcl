job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  container {
    image = "docker://pytorch/pytorch" # error: Wrong value for "image"
  }
}
