# env: AWS_SECRET_ACCESS_KEY=s
# env: PLAIN=x
# env: A_TOKEN=x
job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = {
    KEY = env("AWS_SECRET_ACCESS_KEY") # warning: "KEY" in env looks like a secret
    B   = env("PLAIN")
    C   = env(join("", ["A_", "TOKEN"]))
  }
}
