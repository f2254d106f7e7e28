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
    login = "ecr" # warning: The image is not in a registry of login "ecr"
  }
}
