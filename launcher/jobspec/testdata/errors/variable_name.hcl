variable "1st" { # error: Wrong name of variable "1st"
  default = 1
}
job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
