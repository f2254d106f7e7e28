# var: n=four
variable "n" { # error: Wrong value of variable "n"
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
