# var: regions=us-east-1
variable "regions" { # error: Wrong value of variable "regions"
  default = ["a"]
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
