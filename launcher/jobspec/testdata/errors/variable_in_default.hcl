variable "a" {
  default = 1
}
variable "b" {
  default = var.a # error: A default cannot name other variables
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
