job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  container {
    image = "pytorch/pytorch"
    login = "dockerhub" # error: Wrong value for "login"
  }
}
