# The least that a job file can say.
job "demo" {
  provider "local" {}
  workers { count = 2 }
  run "ranks" { command = "python train.py" }
}
