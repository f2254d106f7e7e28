job "demo" {
  provider "aws" {
    labels = {} # error: Unknown attribute "labels"
    machine_type = "x" # error: Unknown attribute "machine_type"
    quux = 1 # error: Unknown attribute "quux"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
