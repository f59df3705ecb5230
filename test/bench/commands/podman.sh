# What an ordinary user types for a pod with podman. $DIR/pod.yaml is the pod web, $PULL_IMAGE the image for pulls.
version() { podman version --format 'podman {{.Client.Version}}'; }
pull() { podman pull -q "$PULL_IMAGE"; }
unpull() { podman rmi "$PULL_IMAGE"; }
up() { podman kube play "$DIR/pod.yaml"; }
execute() { podman exec web-app true; }
down() { podman kube down "$DIR/pod.yaml"; }
