variable "n" {
  type    = text # error: Wrong type of variable "n"
  default = "four"
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
