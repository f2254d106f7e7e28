# error: Missing block "job"
variable "x" {
  default = 1
}
