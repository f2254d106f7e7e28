# var: n=2
job "demo" { # error: Undeclared variable "n"
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
