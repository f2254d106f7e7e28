variable "n" {
  defualt = 1 # error: Unknown attribute "defualt"
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
