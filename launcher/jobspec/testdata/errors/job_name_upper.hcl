job "Cifar_10" { # error: Wrong name "Cifar_10"
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
