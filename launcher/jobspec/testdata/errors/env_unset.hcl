job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  setup = env("NO_SUCH_THING") # error: Environment variable "NO_SUCH_THING" is not set
}
