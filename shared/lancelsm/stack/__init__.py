"""What a deployment on AWS adds: functions, delivery through the queue, schedule, cost, checks, documents."""
