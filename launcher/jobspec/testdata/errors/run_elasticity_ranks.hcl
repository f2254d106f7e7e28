job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command    = "true"
    elasticity = "torchrun" # error: Wrong value for "elasticity"
  }
}
