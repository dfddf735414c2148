"""A run whose program is a client of Spark Connect: its server belongs to the attempt alone.

    runner (holds the lease)  ->  program.py  ->  the server (spark-submit), then the client

program.py is the program of the attempt, server.py what it knows of its server: both are processes of the attempt, and
end with it. A prepared server is older than its attempt: keeper.py starts it for the daemon, and holder.py is the
runner that takes it. What a server is started with comes from coordd/adapters/spark.py.
"""
