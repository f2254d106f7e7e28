variable "image" { # error: Variable "image" has no value
}
job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = { A = var.image }
}
