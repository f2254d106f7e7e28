variable "n" {
  default = 1
}
variable "n" { # error: Variable "n" is declared twice
  default = 2
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
