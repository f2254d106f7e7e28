job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "torchrun" {
    command    = "torchrun a.py"
    elasticity = "torchrun" # warning: "elasticity" has no effect on a fixed world
  }
}
