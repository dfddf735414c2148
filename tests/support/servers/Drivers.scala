// Drivers for a Standalone cluster in tests.
package org.example

import java.nio.file.{Files, Path}

import org.apache.spark.{SparkConf, SparkContext}

object Ending {
  // Waits for a file, and exits with the number in it.
  def await(file: String): Unit = {
    val path = Path.of(file)
    while (!Files.exists(path) || Files.readString(path).isEmpty) Thread.sleep(50)
    val code = Files.readString(path).trim.toInt
    if (code < 0) throw new IllegalStateException("boom, as the test wants; asked with password=hunter2")
    if (code > 0) System.exit(code)
  }
}

// A driver without a Spark application: it costs one JVM.
object Waits {
  def main(args: Array[String]): Unit = Ending.await(args(0))
}

// A whole application: its executor counts, and then it waits.
object Counts {
  def main(args: Array[String]): Unit = {
    val spark = new SparkContext(new SparkConf())
    val sum = spark.parallelize(1 to 100, 2).map(_ * 2L).reduce(_ + _)
    println(s"the sum is $sum")
    Ending.await(args(0))
    spark.stop()
  }
}
