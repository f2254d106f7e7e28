variable "n" {
  type    = number
  default = "four" # error: Wrong default of variable "n"
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
