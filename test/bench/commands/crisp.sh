# What an ordinary user types for a pod with crisp. $DIR/pod.yaml is the pod web, $PULL_IMAGE the image for pulls.
version() { crisp version | awk 'NR == 1 { print $1, $2 }'; }
pull() { crisp image pull "$PULL_IMAGE"; }
unpull() { crisp image rm "$PULL_IMAGE"; }
up() { crisp apply -f "$DIR/pod.yaml" --wait; }
execute() { crisp exec web -- true; }
down() { crisp delete -f "$DIR/pod.yaml"; crisp wait pod/web --for=delete; }
