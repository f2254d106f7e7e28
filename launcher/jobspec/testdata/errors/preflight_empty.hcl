job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  preflight { # warning: The preflight block tests nothing
  }
}
